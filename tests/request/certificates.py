"""An authority of our own and certificates for any name, made by the openssl that is here."""

import ssl
import subprocess
from pathlib import Path

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """Signs certificates; who trusts `file` trusts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            *("req", "-x509", *KEY, "-days", "2", "-subj", "/CN=Test authority"),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign"),
            *("-keyout", self._key, "-out", self.file),
        )

    def server(self, *names: str) -> ssl.SSLContext:
        """Make what a server of these names needs."""
        base = self._folder / names[0]
        request, key, made = (base.with_name(f"{base.name}.{end}") for end in ("csr", "key", "pem"))
        _openssl("req", *KEY, "-subj", f"/CN={names[0]}", "-keyout", key, "-out", request)
        extra = base.with_name(f"{base.name}.ext")
        extra.write_text("subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key),
            *("-CAcreateserial", "-days", "2", "-extfile", extra, "-out", made),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made, key)
        return context

    def trusted(self) -> ssl.SSLContext:
        """Make what a client needs that trusts nobody else."""
        return ssl.create_default_context(cafile=str(self.file))


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
