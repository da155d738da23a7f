from tunefarm.cli import main

main()
