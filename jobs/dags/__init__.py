"""prdp under Airflow: set Airflow's dags_folder to this folder. Nothing here imports prdp, nor does prdp import it."""
