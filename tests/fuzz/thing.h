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
    int how;          /* HOW_...: of thing_describe */
} Thing;

enum {
    HOW_USUAL,
    HOW_RAISES,
    HOW_FAILS, /* without an exception */
    HOW_NO_TENSOR,
    HOW_NO_OWNER,
    HOW_IS_COPY, /* the tensor is a copy, which was made for the request */
    HOW_OTHER_OWNER,
    HOW_COUNT
};

static PyObject *other_owner; /* of HOW_OTHER_OWNER */

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
    switch (thing->how) {
    case HOW_RAISES: PyErr_SetString(PyExc_KeyboardInterrupt, "by the target"); return -1;
    case HOW_FAILS: return -1;
    case HOW_NO_TENSOR: offer->tensor = NULL; break;
    case HOW_NO_OWNER: offer->owner = NULL; break;
    case HOW_IS_COPY: offer->is_copy = 1; break;
    case HOW_OTHER_OWNER: offer->owner = other_owner; break;
    default: break;
    }
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
