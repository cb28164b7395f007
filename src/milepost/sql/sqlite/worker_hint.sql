-- Those who rest look at the file's version.
SELECT NULL WHERE false
