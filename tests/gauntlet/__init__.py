"""Small trainings, each with one fault from a public report or with none."""
