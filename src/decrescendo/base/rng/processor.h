/* Which of a kernel's versions this processor runs: 2 (AVX-512), 1 (AVX2 with FMA), 0. Asked of the processor itself, as
   compilers that build for other systems have no library that knows it. */

#if defined(__x86_64__)
#include <cpuid.h>

static int versions_here(void)
{
    static volatile int known = -1; /* the same answer whoever asks first: cpuid takes microseconds under a hypervisor */
    if (known >= 0)
        return known;
    unsigned a, b, c, d, low = 0, high, found = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) && (c >> 27 & 1) && (c >> 12 & 1)) { /* the system saves registers; FMA */
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & 0x06) == 0x06 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 5 & 1)) {
            const unsigned wanted = 1u << 16 | 1u << 17 | 1u << 31; /* AVX-512 F, DQ and VL */
            found = (low & 0xe6) == 0xe6 && (b & wanted) == wanted ? 2 : 1;
        }
    }
    known = (int)found;
    return known;
}
#endif
