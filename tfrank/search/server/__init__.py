"""The server of an index folder: HTTP endpoints and a page to search by pictures.

`tfrank serve --index_dir=index` starts it; `app.create_app` makes the application for another server.
"""
