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

#endif
