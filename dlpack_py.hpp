// dlpack_py.hpp - a view of dlpack_py.h for C++
// Version 0.3.0, not released. https://example.org/dlpack_py
// Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
// SPDX-License-Identifier: MIT
#ifndef DLPACK_PY_HPP
#define DLPACK_PY_HPP
#include "dlpack_py.h"
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_py.hpp and dlpack_py.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif
#if DLPACK_PY_AVAILABLE

/* A view that releases itself. It can be moved, not copied:
 *
 *     dlpack_py_unique_view v;
 *     if (dlpack_py_consume(x, &want, v.reset()) < 0)
 *         return nullptr;
 *     auto values = static_cast<const float *>(v.data());
 */
#  ifdef __GNUC__ /* visible in this module only: no other module ever uses these functions (G2) */
#    define DLP_HIDDEN __attribute__((visibility("hidden")))
#  else
#    define DLP_HIDDEN
#  endif
class dlpack_py_unique_view {
  public:
    DLP_HIDDEN dlpack_py_unique_view() noexcept : view()
    {
    }
    dlpack_py_unique_view(const dlpack_py_unique_view &) = delete;
    DLP_HIDDEN dlpack_py_unique_view(dlpack_py_unique_view &&other) noexcept : view()
    {
        dlpack_py_move(&view, &other.view);
    }
    dlpack_py_unique_view &operator=(const dlpack_py_unique_view &) = delete;
    DLP_HIDDEN dlpack_py_unique_view &operator=(dlpack_py_unique_view &&other) noexcept
    {
        if (this != &other) {
            dlpack_py_release(&view);
            dlpack_py_move(&view, &other.view);
        }
        return *this;
    }
    DLP_HIDDEN ~dlpack_py_unique_view()
    {
        dlpack_py_release(&view);
    }

    DLP_HIDDEN void *data() const noexcept
    {
        return dlpack_py_data(&view);
    }
    DLP_HIDDEN const dlpack_py_view *operator->() const noexcept
    {
        return &view;
    }
    /* For functions that take the tensor of a view: dlpack_py_return_like_steal, dlpack_py_move. */
    DLP_HIDDEN dlpack_py_view *get() noexcept
    {
        return &view;
    }
    /* For functions that fill an empty view. Releases the tensor that this view has. */
    DLP_HIDDEN dlpack_py_view *reset() noexcept
    {
        dlpack_py_release(&view);
        return &view;
    }

  private:
    dlpack_py_view view;
};
#endif /* DLPACK_PY_AVAILABLE */
#endif
