"""What runs on the driver: plan, domain, accounting, ledger, engines, publishing."""
