-- A binary payload and its media type. `payload` is empty then, which no JSON text is.
ALTER TABLE jobs ADD COLUMN payload_type TEXT;
ALTER TABLE jobs ADD COLUMN payload_binary BLOB;
