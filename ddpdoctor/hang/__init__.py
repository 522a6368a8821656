"""Looking at jobs that hang, from outside: /proc and py-spy. Nothing here imports torch."""
