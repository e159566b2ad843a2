"""The check of names finds classes with the same name, and lists file names that are common."""

from pathlib import Path

from tools.check_names import repeated_classes, repeated_files


def test_public_classes_of_one_name_in_two_modules_are_found(tmp_path: Path) -> None:
    first = write(tmp_path / "a.py", "class Room: ...\nclass _Private: ...\n")
    second = write(tmp_path / "b.py", "class Room: ...\nclass _Private: ...\nclass Other: ...\n")

    assert repeated_classes([first, second]) == {"Room": [first, second]}


def test_file_names_that_exist_more_than_twice_are_listed(tmp_path: Path) -> None:
    stores = [write(tmp_path / folder / "store.py") for folder in ("a", "b", "c")]
    others = [write(tmp_path / folder / name) for folder in ("a", "b", "c") for name in ("feature.py",)]
    twice = [write(tmp_path / folder / "views.py") for folder in ("a", "b")]

    assert repeated_files([*stores, *others, *twice]) == {"store.py": stores}


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
