"""Files as Outfield 0.1 wrote them: one digest over the header and all arrays together."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from safetensors.torch import save_file


def digest_of(tensors):
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def write_old(path, kind, header, tensors):
    body = {"format": 1, "kind": kind, **header}
    whole = json.dumps(body, sort_keys=True) + digest_of(tensors)
    body["sha256"] = hashlib.sha256(whole.encode()).hexdigest()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"outfield": json.dumps(body)})


def write_old_npz(path, tensors):
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez(path, outfield_sha256=np.array(digest_of(tensors)), **arrays)
