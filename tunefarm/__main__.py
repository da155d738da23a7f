from tunefarm.cli.app import main

main()
