# syntax=docker/dockerfile:1
# A static binary on an image without a shell, about 20 MB.
# Releases pin both images by digest; print the current ones with
#   docker buildx imagetools inspect gcr.io/distroless/static-debian12:nonroot
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
# .git comes along so that `multipooler version` names the commit.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags='-s -w' -o /out/multipooler ./cmd/multipooler

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/multipooler /multipooler
# A number: runAsNonRoot cannot look into the image's passwd.
USER 65532:65532
EXPOSE 6432 9632
ENTRYPOINT ["/multipooler"]
