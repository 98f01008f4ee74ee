/* embed_host SCRIPT...: runs each script in a new main interpreter, one interpreter after the other. */
#include <Python.h>

/* Starts an interpreter that takes its settings from this program, not from the first python on PATH. Returns 0 or -1. */
static int
start(const char *program)
{
    PyStatus status;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    status = PyConfig_SetBytesString(&config, &config.program_name, program);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    return PyStatus_Exception(status) ? -1 : 0;
}

int
main(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        if (start(argv[0]) < 0)
            return 3;
        if (PyRun_SimpleString(argv[i]) < 0)
            return 1;
        if (Py_FinalizeEx() < 0)
            return 2;
    }
    return 0;
}
