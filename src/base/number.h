/* number.h - numbers to text and back in the C locale: the decimal point is ".", whatever locale
 * the host program has set. */
#ifndef NBL_NUMBER_H
#define NBL_NUMBER_H

#include <stddef.h>

/* As strtod in the C locale. */
double nbl__parse_double(const char *text, char **end);
/* As snprintf with "%.*e" in the C locale. */
int nbl__print_exponent(char *text, size_t size, int digits, double value);
/* As snprintf with "%.*f" in the C locale. */
int nbl__print_fixed(char *text, size_t size, int decimals, double value);
/* As snprintf with "%.*g" in the C locale. */
int nbl__print_general(char *text, size_t size, int digits, double value);
/* Python's repr of a float: the shortest digits that are read back as the same float; exponent form
 * below 1e-4 and from 1e16 on; "nan", "inf", "-inf". At most 32 bytes. */
int nbl__print_repr(double value, char text[40]);

#endif
