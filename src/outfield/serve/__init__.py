"""Guards behind HTTP: the Open Inference Protocol, plain uploads, metrics, and a web page."""
