"""Make the documentation site of the documents: `mkdocs.yml` names this package."""
