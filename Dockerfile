# tfrank in a container. On the processor:
#
#     docker build -t tfrank .
#     docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/photos:/photos:ro" -v tfrank:/work tfrank photos /photos --host=0.0.0.0
#
# On NVIDIA GPUs, with their driver and the NVIDIA Container Toolkit on the host:
#
#     docker build --build-arg 'TENSORFLOW=tensorflow[and-cuda]' -t tfrank:gpu .
#     docker run --rm --gpus all -v "$PWD:/work" tfrank:gpu train --config=configs/own_images.py --config.data.records=records/photos
FROM debian:trixie-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/tfrank
ENV PATH=/opt/tfrank/bin:$PATH LC_ALL=C.UTF-8

ARG TENSORFLOW=tensorflow
COPY setup.cfg pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff /src/
COPY tfrank /src/tfrank
RUN pip install --no-cache-dir "/src[serve]" "$TENSORFLOW" && rm -rf /src

RUN useradd --create-home tfrank && install -d -o tfrank /work
USER tfrank
WORKDIR /work
VOLUME /work
EXPOSE 8000
ENTRYPOINT ["tfrank"]
CMD ["--help"]
