"""The sentences that the clauses rest on, as they stand in dlpack.h, in DLPack's documents and in the standards.

A clause without a sentence has the grade choice.
"""

from typing import NamedTuple

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")  # of the array API standard


class Sentence(NamedTuple):
    document: str
    section: str
    since: str  # the first version of the document that has the sentence; 0.8 is that or an earlier one
    words: str  # at most one line

    @property
    def is_array_api(self):
        return self.document == "Python array API standard 2025.12"

    @property
    def source(self):
        return f"{self.document}, {self.section}"


def dlpack_h(section, since, words):
    return Sentence("dlpack.h 1.3", section, since, words)


def python_specification(section, words, since="0.8"):
    return Sentence("DLPack's Python specification", section, since, words)


def array_api(section, since, words):
    return Sentence("Python array API standard 2025.12", section, since, words)


def python(section, words):
    return Sentence("The Python Language Reference", section, "3.9", words)


OPEN = Sentence("no sentence decides this", "", "", "")

# ---- Python ----

KEYWORD = python("Calls", "the identifier is used to determine the corresponding slot")
NO_SUCH_KEYWORD = python("Calls", "does not correspond to a formal parameter name, a TypeError exception is raised")

# ---- The array API standard: array.__dlpack__ ----

METHOD = "array.__dlpack__"
STREAM_PARAMETER = array_api(METHOD, "2021.12", "self: array, /, *, stream: Optional[Union[int, Any]] = None")
ONLY_NONE = array_api(METHOD, "2021.12", "On CPU and other device types without streams, only None is accepted.")
BUFFER_ERROR = array_api(METHOD, "2022.12", "should raise BufferError when the data cannot be exported as DLPack")
RECOMMENDED = array_api(METHOD, "2023.12", "It is recommended for the producer to use this logic in the implementation")
OKAY_TO_RAISE = array_api(METHOD, "2023.12", "from March 2025 onwards [...] it's okay to raise BufferError here")
OF_MAX_VERSION = array_api(METHOD, "2023.12", "may return a capsule of version max_version (recommended if it does")
RAISE_BUFFER_ERROR = array_api(METHOD, "2023.12", "Else, the producer should raise a BufferError here")
FORMAT_OF_DEVICE = array_api(METHOD, "2023.12", "must be a 2-tuple, following that of the return value of")
DEVICE_OF_SELF = array_api(METHOD, "2023.12", "the exported capsule should be on the same device as self is")
DEVICE_CANNOT = array_api(METHOD, "2023.12", "cannot be handled by the producer, this function must raise BufferError")
COPY_TRUE = array_api(METHOD, "2023.12", "If True, the function must always copy (performed by the producer")
COPY_FALSE = array_api(METHOD, "2023.12", "If False, the function must never copy, and raise a BufferError in case")
COPY_NONE = array_api(METHOD, "2023.12", "the function must reuse the existing memory buffer if possible")
CONSUMER_LOGIC = array_api(METHOD, "2023.12", "And this logic for the consumer in from_dlpack")
VERIFY = array_api(METHOD, "2023.12", "the consumer must verify the version even when max_version is passed")

# ---- The array API standard: streams of array.__dlpack__ ----

SAFELY = array_api(METHOD, "2021.12", "to ensure that operations can safely be performed on the array (e.g., by insert")
ASSUME_LEGACY = array_api(METHOD, "2021.12", "producer must assume the legacy default stream (default).")
EXPLICITLY = array_api(METHOD, "2021.12", "It is recommended that implementers explicitly handle streams.")
MINUS_ONE = array_api(METHOD, "2021.12", "If stream is -1, the value may be used by the consumer to signal")
AMBIGUOUS = array_api(METHOD, "2021.12", "0 is disallowed due to its ambiguity: 0 could mean either None, 1, or 2.")
NOT_SUPPORTED = array_api(METHOD, "2021.12", "Using 1 and 2 is not supported.")
FROM_MINUS_ONE = array_api(METHOD, "2023.12", "The pointer must be an integer larger than or equal to -1")
ON_THE_HOST = array_api(METHOD, "2023.12", "when kDLCPU is in use, stream must be None and a synchronization must be")

# ---- The array API standard: array.__dlpack_device__ and from_dlpack ----

DEVICE_TUPLE = array_api("array.__dlpack_device__", "2021.12", "a tuple (device_type, device_id) in DLPack format")
CONTAINS = array_api("from_dlpack", "2021.12", "an array containing the data in x")
FROM_DEVICE = array_api("from_dlpack", "2023.12", "x: object, /, *, device: Optional[device] = None, copy: [...]")
SAME_DEVICE = array_api("from_dlpack", "2023.12", "the output array must be on the same device as x")
PROPAGATE = array_api("from_dlpack", "2023.12", "from_dlpack must propagate such exceptions")
ATTRIBUTE_ERROR = array_api("from_dlpack", "2023.12", "If the __dlpack__ and __dlpack_device__ methods are not present")
FROM_TRUE = array_api("from_dlpack", "2023.12", "If True, the function must always copy.")
FROM_FALSE = array_api(
    "from_dlpack", "2023.12", "If False, the function must never copy, and raise BufferError in case"
)
FROM_NONE = array_api(
    "from_dlpack", "2023.12", "If None, the function must reuse the existing memory buffer if possible"
)

# ---- DLPack's Python specification ----

ACCEPTS = python_specification("Syntax", "accepts any (array) object with the two DLPack methods implemented")
ZERO_COPY = python_specification("Semantics", "If possible, this must be zero-copy")
LIKE_OTHERS = python_specification("Semantics", "may continue to be used just like arrays created in other ways")
UNSUPPORTED = python_specification("Semantics", "it is recommended to raise a BufferError, unless an explicit copy")
IS_COPIED_SET = python_specification(
    "Semantics", "the producer must set the DLPACK_FLAG_BITMASK_IS_COPIED bit flag", "1.0"
)
ONCE = python_specification("Implementation", "therefore it is consumed exactly once")
NAMED = python_specification("Implementation", 'must set the PyCapsule name to "dltensor" so that it can be inspected')
DESTRUCTOR = python_specification("Implementation", 'calls the deleter [...] when the "dltensor"-named capsule is no')
OWNERSHIP = python_specification("Implementation", "must transer ownership of the DLManagedTensor from the capsule to")
RENAMING = python_specification("Implementation", 'by renaming the capsule to "used_dltensor" to ensure that')
DELETER_CALLED = python_specification(
    "Implementation", "will be called by the destructor of the consumer library object"
)
IN_FLIGHT = python_specification("Implementation", "an exception may be in-flight, we must save it in case we create")
STATIC_NAME = python_specification("Implementation", "the capsule names [...] must be statically allocated")
GIL = python_specification("Implementation", "this means that the GIL must be acquired explicitly")
LEAK = python_specification("Implementation", "Leak the Python object if the Python runtime is not available.")

# ---- dlpack.h ----

MAJOR = dlpack_h("DLPackVersion", "1.0", "the consumer must call the deleter (and it is safe to do so).")
MINOR = dlpack_h("DLPackVersion", "1.0", "In the case of a minor version mismatch, the tensor can be safely used")
VERSION_FIELD = dlpack_h("DLManagedTensorVersioned", "1.0", "The API and ABI version of the current managed Tensor")
ID_IS_0 = dlpack_h("DLDevice", "0.8", "For vanilla CPU memory, pinned memory, or managed memory, this is set to 0.")
DEVICE_FIELD = dlpack_h("DLTensor", "0.8", "The device of the tensor")
CODES = dlpack_h("DLDataType", "0.8", "the value should be one of DLDataTypeCode enum values")
DTYPE = dlpack_h("DLDataType", "0.8", "float: type_code = 2, bits = 32, lanes = 1")
LANES = dlpack_h("DLDataType", "0.8", "Number of lanes in the type, used for vector types.")
OFFSET = dlpack_h("DLTensor", "0.8", "The offset in bytes to the beginning pointer to data")
ALIGNED = dlpack_h("DLTensor", "0.8", "it is recommended to not rely on the data pointer being correctly aligned")
EMPTY = dlpack_h("DLTensor", "0.8", "if the tensor is of size zero, then the data pointer should be set to NULL")
NDIM = dlpack_h("DLTensor", "0.8", "Number of dimensions")
SHAPE = dlpack_h("DLTensor", "0.8", "The shape of the tensor")
SHAPE_64 = dlpack_h("DLTensor", "0.8", "int64_t* shape;")
NO_SHAPE = dlpack_h("DLTensor", "1.2", "When ndim == 0, shape can be set to NULL.")
STRIDES = dlpack_h("DLTensor", "0.8", "strides of the tensor (in number of elements, not bytes)")
STRIDES_SET = dlpack_h("DLTensor", "1.2", "can not be NULL if ndim != 0, must points to an array of ndim elements")
STRIDES_NULL = dlpack_h("DLTensor", "0.8", "Before DLPack v1.2, strides can be NULL to indicate contiguous data.")
BORROWING = dlpack_h("DLManagedTensor", "0.8", "intended to facilitate the borrowing of DLTensor by another framework")
CONTEXT = dlpack_h("DLManagedTensor", "0.8", "It can also be NULL.")
NO_DELETER = dlpack_h("DLManagedTensor", "0.8", "NULL if there is no way for the caller to provide a reasonable")
UNTIL_DELETER = dlpack_h("DLManagedTensor", "0.8", "call the deleter to notify the host that the resource is no longer")
DELETES_SELF = dlpack_h("DLManagedTensor", "0.8", "The destructor deletes the argument self as well.")
FLAGS_0 = dlpack_h("DLManagedTensorVersioned", "1.0", "By default the flags should be set to 0.")
READ_ONLY_FLAG = dlpack_h("DLPACK_FLAG_BITMASK_READ_ONLY", "1.0", "bit mask to indicate that the tensor is read only.")
SOLELY_OWNED = dlpack_h("DLPACK_FLAG_BITMASK_IS_COPIED", "1.0", "If set, the tensor is considered solely owned")
PADDED_FLAG = dlpack_h(
    "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED", "1.1", "to signal that a tensor of sub-byte type is"
)

# ---- dlpack.h, the exchange API ----

ON_THE_TYPE = dlpack_h("DLPackExchangeAPI", "1.3", "must be set on the type as a Python PyCapsule with name")
LOOK_UP = dlpack_h("DLPackExchangeAPI", "1.3", "The consumer should look up the attribute on the type")
STAYS = dlpack_h("DLPackExchangeAPI", "1.3", "must stay alive throughout the lifetime of the process")
CHECK_MAJOR = dlpack_h("DLPackExchangeAPIHeader", "1.3", "must check major version compatibility before using this")
OLDER = dlpack_h("DLPackExchangeAPIHeader", "1.3", "the consumer may walk this to find an earlier supported version")
NOT_NULL = dlpack_h("DLPackExchangeAPI", "1.3", "This function must not be NULL.")
MAY_BE_NULL = dlpack_h("DLPackExchangeAPI", "1.3", "can be NULL when the producer does not support this function")
ALLOCATED = dlpack_h("DLPackManagedTensorAllocator", "1.3", "The allocation is defined via the prototype DLTensor.")
SET_ERROR = dlpack_h("DLPackManagedTensorAllocator", "1.3", "SetError is called exactly when NULL is returned")
OWNED = dlpack_h("DLPackManagedTensorFromPyObjectNoSync", "1.3", "Exports a PyObject* Tensor/NDArray")
OWNED_FAILS = dlpack_h("DLPackManagedTensorFromPyObjectNoSync", "1.3", "NULL on failure with a Python exception set")
BUFFER_IF_POSSIBLE = dlpack_h("DLPackManagedTensorFromPyObjectNoSync", "1.3", "should be a BufferError if possible")
SAME_TYPE = dlpack_h("DLPackManagedTensorFromPyObjectNoSync", "1.3", "Must have the same type as the one")
LENT = dlpack_h("DLPackDLTensorFromPyObjectNoSync", "1.3", "still owns the memory of data, strides, shape")
STOLEN = dlpack_h("DLPackManagedTensorToPyObjectNoSync", "1.3", "to convert the ownership of the tensor is stolen.")
CONVERT = dlpack_h("DLPackManagedTensorToPyObjectNoSync", "1.3", "Convert an owning DLManagedTensorVersioned* to the")
WORK_STREAM = dlpack_h("DLPackCurrentWorkStream", "1.3", "Obtain the current work stream of a device.")
NULL_STREAM = dlpack_h("DLPackCurrentWorkStream", "1.3", "the producer can simply return NULL when queried")
