"""Pure, vectorised functions on arrays, which the workers run; knows neither engines nor the pipeline."""
