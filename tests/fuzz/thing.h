/* An object that offers a tensor: of request.c and buffers.c, which include embedded.h before this file. */
#ifndef THING_H
#define THING_H

typedef struct Thing {
    PyObject_HEAD
    Tensor given;
    dlpack_py_counter exports;
    int is_counted;
    uint32_t options;
    int is_described; /* 1: __dlpack__ calls thing_describe; 0: it uses given alone */
} Thing;

static int
thing_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Thing *thing = (Thing *)self;
    (void)request;
    offer->tensor = &thing->given.t;
    offer->flags = thing->given.flags;
    offer->options = thing->options;
    if (thing->is_counted)
        offer->exports = &thing->exports;
    return 0;
}

static void
thing_dealloc(PyObject *self)
{
    Thing *thing = (Thing *)self;
    CHECK(dlpack_py_exports_count(&thing->exports) == 0);
    tensor_free(&thing->given);
    object_free(self);
}

#endif /* THING_H */
