"""The tasks of people on the page, played on the real system; `index.py` lists them."""
