#include "case.h"
int mode_support(const case_options *o)
{
    (void)o;
    return 1;
}
