"""prdp calibrate: the scales of a plan, a draft or one mechanism from a wanted accuracy or loss; reads no microdata."""

from prdp.calibration import calibrate

CALL = calibrate
EXAMPLE = "prdp calibrate --kind log --set a=100 --standard-error 30 --total 500"
