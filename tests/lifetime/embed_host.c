/* embed_host SCRIPT...: runs each script in a new main interpreter, one interpreter after the other. */
#include <Python.h>

int
main(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        Py_Initialize();
        if (PyRun_SimpleString(argv[i]) < 0)
            return 1;
        if (Py_FinalizeEx() < 0)
            return 2;
    }
    return 0;
}
