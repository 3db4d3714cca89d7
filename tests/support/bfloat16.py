"""bfloat16, which NumPy has from ml_dtypes; tests that import this are skipped without it."""

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="no ml_dtypes")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
