-- A ledger of schema version 1 with a release in each state, as the build that wrote it left it.
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
INSERT INTO "entries" VALUES(1,'2026-11-22T16:51:34.261412+00:00','reserved','d','reserved',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:reserved","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"reserved"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','ccc245027ce40c1cb97ffb2b864d7433','0000000000000000000000000000000000000000000000000000000000000000','b4075f1a07090183f197a4873bcbaabf243dff97c212282ec2656221f6f8b6b6');
INSERT INTO "entries" VALUES(2,'2026-11-22T16:51:34.320955+00:00','reserved','d','drawn',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:drawn","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"drawn"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','812d63a6868a7ce6ee7d050474605552','b4075f1a07090183f197a4873bcbaabf243dff97c212282ec2656221f6f8b6b6','bc1b86ad474ee80f17ba1fc52c2995e32b1c135277c199b5dae30543aaf6e3c6');
INSERT INTO "entries" VALUES(3,'2026-11-22T16:51:34.371486+00:00','drawn','d','drawn','c5add05a0c5a8310','{"draw":1,"pin":"sha256:pin"}','2313021fbfb31a6fdb4076fabbc1191a','bc1b86ad474ee80f17ba1fc52c2995e32b1c135277c199b5dae30543aaf6e3c6','9cb7214eba9f7bd9f1caa5bb34e4f27764c74c71829dbdf5b5774e8d6a236ea2');
INSERT INTO "entries" VALUES(4,'2026-11-22T16:51:34.399551+00:00','reserved','d','published',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:published","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"published"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','fc0bc8efd5dbb222ff23f947ba98cd06','9cb7214eba9f7bd9f1caa5bb34e4f27764c74c71829dbdf5b5774e8d6a236ea2','3fafbb1ace2a88d61e18ce1b037cc2b8e44c30ffc582bae29f8af8f7b26fbbea');
INSERT INTO "entries" VALUES(5,'2026-11-22T16:51:34.491465+00:00','drawn','d','published','e6f1d68c0c22cd6d','{"draw":1,"pin":"sha256:pin"}','d1ac02981c81b05f432191fb51ce13b8','3fafbb1ace2a88d61e18ce1b037cc2b8e44c30ffc582bae29f8af8f7b26fbbea','035cd5dbdcd8e3f54393b8a3ff1473e61b5a8152f5c0088c3ea4dfdfbda86f54');
INSERT INTO "entries" VALUES(6,'2026-11-22T16:51:34.539402+00:00','published','d','published','e6f1d68c0c22cd6d','{"contents":"sha256:contents"}','183e50f4cb2d229a6d83ef551f16f60b','035cd5dbdcd8e3f54393b8a3ff1473e61b5a8152f5c0088c3ea4dfdfbda86f54','c93c1b0caa5b28487e3b8c64a43e1ec647fd921d3f1e436458fdeeb870200ecc');
INSERT INTO "entries" VALUES(7,'2026-11-22T16:51:34.592039+00:00','reserved','d','settled',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:settled","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"settled"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','ecb101be226d0fe3b302e4fef6f39162','c93c1b0caa5b28487e3b8c64a43e1ec647fd921d3f1e436458fdeeb870200ecc','bf9c477e3d3a363cea94204e8e75cc601e8291b8c00c69a612431a69f26255ad');
INSERT INTO "entries" VALUES(8,'2026-11-22T16:51:34.640871+00:00','drawn','d','settled','da52000f1ab13c76','{"draw":1,"pin":"sha256:pin"}','44886cd786a4d64112d55b922df54ff3','bf9c477e3d3a363cea94204e8e75cc601e8291b8c00c69a612431a69f26255ad','92fd6b64e713587bee44baaae276665aef3eaf8ded68a8b740a4eae7566cfcf6');
INSERT INTO "entries" VALUES(9,'2026-11-22T16:51:34.699429+00:00','published','d','settled','da52000f1ab13c76','{"contents":"sha256:contents"}','6153de66835e45a1f0b602cae87ca723','92fd6b64e713587bee44baaae276665aef3eaf8ded68a8b740a4eae7566cfcf6','3caa3bd41af9625047de750b7a34057ea6b5f9b74e922375af6794329f9fe956');
INSERT INTO "entries" VALUES(10,'2026-11-22T16:51:34.747632+00:00','settled','d','settled','da52000f1ab13c76','{}','120e47cb068435e7d8f4f8761324be39','3caa3bd41af9625047de750b7a34057ea6b5f9b74e922375af6794329f9fe956','c153a74c7fc2dce70288c0ea8f0f4398d5f5f44464e899ca2f8f1d120c403fd0');
INSERT INTO "entries" VALUES(11,'2026-11-22T16:51:34.788669+00:00','reserved','d','withdrawn',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:withdrawn","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"withdrawn"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','44fa38563394765d56631622ce103704','c153a74c7fc2dce70288c0ea8f0f4398d5f5f44464e899ca2f8f1d120c403fd0','6361c304dec12445ba283ea641dad0b2984ff7acc11f80ea3d69c808254af638');
INSERT INTO "entries" VALUES(12,'2026-11-22T16:51:34.811797+00:00','drawn','d','withdrawn','fa71904f1e95eeba','{"draw":1,"pin":"sha256:pin"}','51b39bdedc8917bcee434b12c33bf57e','6361c304dec12445ba283ea641dad0b2984ff7acc11f80ea3d69c808254af638','b70201a4e874896ed3056734a244eb6bb6c97f96c6eb8a8306de0d0ebc3797ae');
INSERT INTO "entries" VALUES(13,'2026-11-22T16:51:34.843746+00:00','published','d','withdrawn','fa71904f1e95eeba','{"contents":"sha256:contents"}','80fefe542a127f13ff24b245abe5ac43','b70201a4e874896ed3056734a244eb6bb6c97f96c6eb8a8306de0d0ebc3797ae','d88dc605a91e414d54a0f3bf9e302f5644d6c91dc4c9f38c69cf98d5674084c7');
INSERT INTO "entries" VALUES(14,'2026-11-22T16:51:34.870176+00:00','settled','d','withdrawn','fa71904f1e95eeba','{}','86588ed4123401d365a8cc798e3c4ff9','d88dc605a91e414d54a0f3bf9e302f5644d6c91dc4c9f38c69cf98d5674084c7','bbc789cc56dc97c1dcca8a620ebc1ccbebc81f96faff1a61b3bd2b92ebe52674');
INSERT INTO "entries" VALUES(15,'2026-11-22T16:51:34.893419+00:00','reserved','d','aborted',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:aborted","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"aborted"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','06d751545f01507bb6cdc6a7aa3ca657','bbc789cc56dc97c1dcca8a620ebc1ccbebc81f96faff1a61b3bd2b92ebe52674','2034e066adcf8cf2452b89ff73ee1da0a863682195bf8076ce504086e19e542b');
INSERT INTO "entries" VALUES(16,'2026-11-22T16:51:34.911653+00:00','aborted','d','aborted',NULL,'{}','2561657520b092fdca021a211d83cfa6','2034e066adcf8cf2452b89ff73ee1da0a863682195bf8076ce504086e19e542b','248a9aaee68acdb1f6329d7340d26794b7f43950596209bfc7673420222727eb');
INSERT INTO "entries" VALUES(17,'2026-11-22T16:51:34.930575+00:00','reserved','d','given_up',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:given_up","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"given_up"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','0d7788b0c3a598da6504b6997a7eeadb','248a9aaee68acdb1f6329d7340d26794b7f43950596209bfc7673420222727eb','c1a3315c39faf580c95fcd3f3cc05710194f557c5c330b7045355ca673161918');
INSERT INTO "entries" VALUES(18,'2026-11-22T16:51:34.935252+00:00','drawn','d','given_up','cc975c38c28dfa88','{"draw":1,"pin":"sha256:pin"}','bd86b56d6bec2e25aa80fec4c04a2a20','c1a3315c39faf580c95fcd3f3cc05710194f557c5c330b7045355ca673161918','6804cb614f24ca28c0a695569f293f34967c04fac0e1c052b079201d8ed501c0');
INSERT INTO "entries" VALUES(19,'2026-11-22T16:51:34.947613+00:00','aborted','d','given_up',NULL,'{}','6487fc286bb3e00eca18f8d4358a2a63','6804cb614f24ca28c0a695569f293f34967c04fac0e1c052b079201d8ed501c0','e54fcd50d36586f50c270d55f4c55a4e5788301a574b9ed4ea8d45abec2e2b08');
INSERT INTO "entries" VALUES(20,'2026-11-22T16:51:34.960907+00:00','reserved','d','destroyed',NULL,'{"code":"sha256:code","dataset_facts":{"measures":{"payroll":{"step":0.1,"type":"decimal"}},"unit":"record"},"digest":"sha256:destroyed","limits":[{"at":{},"label":"any record","places":null,"rho":40}],"out":"/out","plan":{"release":"destroyed"},"policy":{"places":[[0]],"queries":[{"measure":null,"mechanism":{"kind":"gaussian","policy":"paper","sigma":0.5},"name":"q","step":1}]},"supersedes":null}','ff3f52a871727c3ada5accd574f666a0','e54fcd50d36586f50c270d55f4c55a4e5788301a574b9ed4ea8d45abec2e2b08','81507b69f5f38888741bb9911797ae62af6a98f3569d76ec4a82793545b88428');
INSERT INTO "entries" VALUES(21,'2026-11-22T16:51:34.971674+00:00','drawn','d','destroyed','8c5623d5ca573392','{"draw":1,"pin":"sha256:pin"}','3433a8f3ed24257d782e6f7b367d9927','81507b69f5f38888741bb9911797ae62af6a98f3569d76ec4a82793545b88428','2bd6c439092bd90756ef6607fbbf9dc60a0f9c86ed758a58cd4a4c76976be668');
INSERT INTO "entries" VALUES(22,'2026-11-22T16:51:34.981543+00:00','destroyed','d','destroyed','8c5623d5ca573392','{"exposed":false,"reason":"incomplete"}','0c1f1cee62ce2036d706455e8c5f7f96','2bd6c439092bd90756ef6607fbbf9dc60a0f9c86ed758a58cd4a4c76976be668','448ecb5de000afa3210b7cd7a327829bfed8ea2ef8d82ff25e1dec1fc4882c02');
CREATE TABLE meta (
	one INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	PRIMARY KEY (one), 
	CONSTRAINT one_row CHECK (one = 1)
);
INSERT INTO "meta" VALUES(1,1);
CREATE INDEX entries_by_dataset ON entries (dataset);
CREATE UNIQUE INDEX one_publication ON entries (release) WHERE event = 'published';
CREATE INDEX entries_by_release ON entries (release);
CREATE TRIGGER entries_not_updated BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER entries_not_deleted BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER entries_appended BEFORE INSERT ON entries
       WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries)
       BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END;
COMMIT;
