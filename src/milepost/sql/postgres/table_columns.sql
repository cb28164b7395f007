SELECT attname FROM pg_attribute
 WHERE attrelid = to_regclass(quote_ident(:table)) AND attnum > 0 AND NOT attisdropped
