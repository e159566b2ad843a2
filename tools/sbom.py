"""The software bill of materials of a release, in the format CycloneDX 1.6."""

# The models of cyclonedx-python-lib are made by a decorator that hides their fields and constructors.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from tools.third_party import Part


def sbom(version: str, revision: str, made_at: datetime, parts: Iterable[Part]) -> str:
    """Return the JSON text. The same arguments give the same text: the serial number is derived from them."""
    product = _component("banksman", version, "Apache-2.0", "pypi", ComponentType.APPLICATION)
    components = {part.name: _of_part(part) for part in parts}
    return make_outputter(
        Bom(
            serial_number=uuid5(NAMESPACE_URL, f"banksman:{version}:{revision}"),
            metadata=BomMetaData(component=product, timestamp=made_at),
            components=components.values(),
            dependencies=_dependencies(parts, {"banksman": product, **components}),
        ),
        OutputFormat.JSON,
        SchemaVersion.V1_6,
    ).output_as_string(indent=2)


def _of_part(part: Part) -> Component:
    component = _component(part.name, part.version, part.licence, part.source, ComponentType.LIBRARY)
    if part.sha512:
        component.hashes.add(HashType(alg=HashAlgorithm.SHA_512, content=part.sha512))
    return component


def _component(name: str, version: str, licence: str, source: str, type: ComponentType) -> Component:
    namespace, _, short = name.rpartition("/")
    return Component(
        name=name,
        version=version,
        type=type,
        bom_ref=f"{source}:{name}",
        licenses=[LicenseFactory().make_from_string(licence)],
        purl=PackageURL(source, namespace or None, short, version),
    )


def _dependencies(parts: Iterable[Part], components: dict[str, Component]) -> list[Dependency]:
    found: list[Dependency] = []
    for name, component in components.items():
        needed = [components[part.name] for part in parts if name in part.used_by]
        found.append(Dependency(component.bom_ref, [Dependency(one.bom_ref) for one in needed]))
    return found
