"""How the kernels of this GPU cut a shard."""

import numpy as np

from distscan.core import dtypes, form, operators


def geometry(types, strategy):
    """Elements of a tile, thread blocks, tiles that a block holds at a time: of a sum's scan."""
    import cupy

    from distscan.cuda import definitions, policy

    device = cupy.cuda.Device()
    if strategy == "scan-add":  # it stores the running value
        types = dtypes.Types(types.x, types.acc, types.acc)
    running = definitions.register_types(operators.BUILTIN["sum"], types)
    sm_count = device.attributes["MultiProcessorCount"]
    chosen = policy.scan_policy(running, form.PLAIN, device.compute_capability, 1 << 40, sm_count)
    tile = chosen.threads * chosen.rows * chosen.items
    return tile, sm_count, chosen.stages


def typed(codes):
    return dtypes.Types(*map(np.dtype, codes))
