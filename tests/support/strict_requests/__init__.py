"""The rules of the vendors for requests, as checks that raise `RequestRefused` with the vendor's error."""
