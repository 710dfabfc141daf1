-- A ledger of schema version 1, as the build that wrote it left it.
BEGIN TRANSACTION;
CREATE TABLE entries (
	seq INTEGER NOT NULL, 
	time TEXT NOT NULL, 
	event TEXT NOT NULL, 
	dataset TEXT NOT NULL, 
	release TEXT NOT NULL, 
	attempt TEXT, 
	payload TEXT NOT NULL, 
	salt TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (previous), 
	UNIQUE (hash)
);
INSERT INTO "entries" VALUES(1,'2026-11-21T13:10:17.979730+00:00','reserved','d','r',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:r","limits":[{"at":{},"label":"any record","places":null,"rho":200}],"out":"/out","plan":{"release":"r"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','240d3e5d520a4d9ecda8bcb9b279a4a7','0000000000000000000000000000000000000000000000000000000000000000','e3ac0722364022d6835e5617fa96d583ca5dc641ee49b2e96f899a2375a96c9c');
INSERT INTO "entries" VALUES(2,'2026-11-21T13:10:17.999644+00:00','drawn','d','r','203f21a84bd455db','{"draw":1,"pin":"sha256:pin"}','93104de4d9d76ee45bc007d2c6011c66','e3ac0722364022d6835e5617fa96d583ca5dc641ee49b2e96f899a2375a96c9c','edae1ed6fead2dbd4c9c756263fd67808a59c676e18d5ced604ae8427ca13f5d');
INSERT INTO "entries" VALUES(3,'2026-11-21T13:10:18.007432+00:00','destroyed','d','r','203f21a84bd455db','{"exposed":false,"reason":"incomplete"}','d06f8b6ef96e92a5b29f1855c19e45c1','edae1ed6fead2dbd4c9c756263fd67808a59c676e18d5ced604ae8427ca13f5d','bf29f59bfde471053d060e55391be83630aceba20d5534d41afdcaf454165fad');
INSERT INTO "entries" VALUES(4,'2026-11-21T13:10:18.020612+00:00','drawn','d','r','dc3085f8ea61f8d4','{"draw":2,"pin":"sha256:pin"}','251e580b54ba489b4d7c9d4b6a684c5b','bf29f59bfde471053d060e55391be83630aceba20d5534d41afdcaf454165fad','eca42f58f0fdca2316c9eb67136a1e05e636c884a8305dd0f45b7ee15a19850a');
INSERT INTO "entries" VALUES(5,'2026-11-21T13:10:18.037880+00:00','published','d','r','dc3085f8ea61f8d4','{"contents":"sha256:contents"}','056f3be80da774e53934cdf79adb39c4','eca42f58f0fdca2316c9eb67136a1e05e636c884a8305dd0f45b7ee15a19850a','d1eab94d1c0c79c5218010f6560241eb7137f03f6e2bd1d72b76f23b1d6a3dc7');
INSERT INTO "entries" VALUES(6,'2026-11-21T13:10:18.051569+00:00','settled','d','r','dc3085f8ea61f8d4','{}','75f879b5b4a55accc3b5c3804cce15ba','d1eab94d1c0c79c5218010f6560241eb7137f03f6e2bd1d72b76f23b1d6a3dc7','0e05fb80fc5289278d4bc71eed9f473bb103d0575bea373b303d80457a718dc2');
INSERT INTO "entries" VALUES(7,'2026-11-21T13:10:18.083016+00:00','reserved','d','s',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:s","limits":[{"at":{},"label":"any record","places":null,"rho":200}],"out":"/out","plan":{"release":"s"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','00dab4c7f13d1099626e977a0709e787','0e05fb80fc5289278d4bc71eed9f473bb103d0575bea373b303d80457a718dc2','88b8b15c4868c3904764f2a4b8f65bc51f893620910984d6a4cfc59aeda36217');
CREATE TABLE meta (
	one INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	PRIMARY KEY (one), 
	CONSTRAINT one_row CHECK (one = 1)
);
INSERT INTO "meta" VALUES(1,1);
CREATE INDEX entries_by_release ON entries (release);
CREATE INDEX entries_by_dataset ON entries (dataset);
CREATE UNIQUE INDEX one_publication ON entries (release) WHERE event = 'published';
CREATE TRIGGER entries_not_updated BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER entries_not_deleted BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER entries_appended BEFORE INSERT ON entries
       WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries)
       BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END;
COMMIT;
