"""For experts on Spark: a mechanism as a pandas UDF over public cells and totals of one's own, beside any ledger."""

from pipeline.engines.spark_frames import NoiseKey, mechanism_udf

__all__ = ["NoiseKey", "mechanism_udf"]
