/* dlpack_tensor.h needs no Python: a tensor is described, checked and printed. */
#include <stdio.h>

#include "dlpack_tensor.h"

int
main(void)
{
    double values[6] = {0};
    const int64_t shape[2] = {2, 3};
    const DLTensor t = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, 2, shape, NULL);
    dlpack_py_error error;
    char text[DLPACK_PY_TEXT_SIZE];

    if (dlpack_py_validate(&t, 0, &error) < 0) {
        puts(error.text);
        return 1;
    }
    printf("dlpack_py %s: %s, %d elements\n", DLPACK_PY_VERSION_STRING, dlpack_py_dtype_text(dlpack_py_dtype(&t), text),
           (int)dlpack_py_size(&t));
    return 0;
}
