from decrescendo_papers.cli import main

main()
