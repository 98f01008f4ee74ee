/* embed_host SCRIPT...: each script in an interpreter of its own, one after another, all the main one of this process. */
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
