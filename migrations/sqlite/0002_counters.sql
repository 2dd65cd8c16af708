-- The counters are kept by the transaction of every change (`store/sqlite/tx.rs`), which adds up what it does and
-- writes it once. Triggers cost every job what a round needs once.
DROP TRIGGER jobs_counted_in;
DROP TRIGGER jobs_counted_over;
DROP TRIGGER jobs_counted_away;
DROP TRIGGER jobs_counted_out;
