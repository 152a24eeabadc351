# The pinned environment of envs/lock.txt and the engine of this clone, for machines where nothing
# may be installed. See docs/executors.md.
#   docker build --tag tsc .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" tsc run studies/smoke.yaml
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1

WORKDIR /opt/tsc

# Packages first: a change of the engine does not fetch them anew.
COPY envs/lock.txt envs/lock.txt
RUN python -m pip install -r envs/lock.txt

COPY pyproject.toml README.md LICENSE Snakefile config.yaml ./
COPY tsc_engine tsc_engine
COPY plugins plugins
COPY workflow workflow
COPY profiles profiles
COPY studies studies
COPY envs envs
# Editable, because the rules and the plugins are read from the clone.
RUN python -m pip install --no-deps -e . \
 && python -m compileall -q tsc_engine plugins \
 && useradd --create-home --uid 1000 tsc \
 && install --directory --owner tsc /work

# Whoever runs it may be another user, whose home is not in the image.
ENV HOME=/tmp
USER tsc
WORKDIR /work
ENTRYPOINT ["tsc"]
CMD ["run"]
