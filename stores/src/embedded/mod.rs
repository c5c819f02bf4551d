//! The embedded stores: SQLite files and a local folder under one data folder.
