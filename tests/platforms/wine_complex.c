/* What NumPy calls of Windows' C library and wine 8 lacks; windows.py builds it. On Windows long double is double. */
typedef struct {
    float real, imag;
} single;
typedef struct {
    double real, imag;
} complex;

#define PARTS(suffix, type, part) \
    part creal##suffix(type z);   \
    part creal##suffix(type z)    \
    {                             \
        return z.real;            \
    }                             \
    part cimag##suffix(type z);   \
    part cimag##suffix(type z)    \
    {                             \
        return z.imag;            \
    }

PARTS(f, single, float)
PARTS(, complex, double)
PARTS(l, complex, double)
