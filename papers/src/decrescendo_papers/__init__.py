"""The papers behind decrescendo, reproduced with its public names only: data, models, tables, figures, theory."""
