-- Who is who in conf/ledger/roles.sql: whoever releases decides nothing, whoever decides draws nothing, whoever copies reads.
GRANT prdp_owner TO owner;
GRANT prdp_release TO releaser;
GRANT prdp_officer TO officer;
GRANT prdp_reader TO backup;
