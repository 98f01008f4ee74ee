"""examples/gpu_vector on a GPU: it finds the runtime at run time, and exchanges with torch (C3, S1)."""

import importlib


def test_the_example_keeps_values_and_exchanges_with_torch_S1(gpu, torch):
    Vector = importlib.import_module("cuda_vector").Vector
    vector = Vector(range(1000))
    tensor = torch.from_dlpack(vector)
    assert tensor.data_ptr() == vector.__cuda_array_interface__["data"][0]
    tensor.add_(1)
    torch.cuda.synchronize()
    assert vector.tolist() == [float(i + 1) for i in range(1000)]
    vector.assign(torch.full((1000,), 7.0, device="cuda"))
    assert vector.tolist() == [7.0] * 1000
    copy = torch.from_dlpack(vector, copy=True)
    assert copy.data_ptr() != tensor.data_ptr()
    assert copy.sum().item() == 7000
    assert Vector.from_dlpack(torch.arange(5.0, device="cuda")).tolist() == [0, 1, 2, 3, 4]


def test_the_example_without_torch(gpu):
    Vector = importlib.import_module("cuda_vector").Vector
    vector = Vector([1, 2.5])
    vector.assign(Vector([3, 4.5]))
    assert vector.tolist() == [3, 4.5]
