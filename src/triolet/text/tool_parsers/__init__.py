"""The ways in which models write calls of tools: a module for each, and ``formats`` that knows them all."""
