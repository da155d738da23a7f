"""Pages and plots made from files of figures."""
