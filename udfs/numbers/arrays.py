"""Names for arrays of one type, used throughout."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Mask = NDArray[np.bool_]
