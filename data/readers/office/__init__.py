"""Documents of office programs: Word, OpenDocument, RTF."""
