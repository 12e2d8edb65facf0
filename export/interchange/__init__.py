"""The model for programs other than llama.cpp: ONNX (``format=onnx``) and torch.export (``format=pt2``)."""
